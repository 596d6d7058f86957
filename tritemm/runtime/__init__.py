"""Between a plan and the GPU: the fast path of a call, prepared launches, tensor maps, workspace.

Nothing here knows a kernel. What we use of torch's and Triton's private parts is confined to
`torch_private` and `triton_private`.
"""
