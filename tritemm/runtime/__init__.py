"""Between a plan and the GPU: the short way of a call, prepared launches, tensor maps, workspace.

Nothing here knows a kernel. What is private to torch and to Triton, and used all the same, stands
in `torch_private` and `triton_private`.
"""
