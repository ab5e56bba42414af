"""Model folders in Hugging Face format: checked by their headers, streamed tensor by tensor."""

from smoe.models.loading.checkpoint import Checkpoint, open_checkpoint
from smoe.models.loading.config import BUILTIN, model_folder
from smoe.models.loading.expert_source import ExpertSource, TensorRange

__all__ = ["BUILTIN", "Checkpoint", "ExpertSource", "TensorRange", "model_folder", "open_checkpoint"]
