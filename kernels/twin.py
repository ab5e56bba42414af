"""What the torch twins share."""

from torch import Tensor
from torch.nn import functional


def matmul(x_TK: Tensor, weight_NK: Tensor) -> Tensor:
    """x @ weight.T as fp32 [T, N]. On a GPU with equal dtypes the tensor cores do it; they sum in fp32, too."""
    if x_TK.is_cuda and x_TK.dtype == weight_NK.dtype:
        return functional.linear(x_TK, weight_NK).float()
    return functional.linear(x_TK.float(), weight_NK.float())
