"""The name of this copy of tritemm, for registries that the whole process shares.

Several copies may be loaded side by side, each as a module of another name: the hub of Hugging Face
loads a version by a name that has its hash, and a project may vendor one. Each registers operators
of its own. The installed package has the name tritemm, so its operators are `tritemm::gemm` and so
on.
"""

#: Namespace of the operators in `torch.ops`, and what transformers knows the experts by.
NAMESPACE = (__package__ or "tritemm").replace(".", "_")
