"""What several rungs share: scheduler, mainloop and epilogue on the device, and their host side."""
