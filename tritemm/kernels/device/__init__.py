"""What several rungs share: on the device scheduler, mainloop and epilogue, and their host side."""
