"""Size of what drafts tokens for speculation: a smaller model, or a head."""

from backend.engine_config import EngineConfig
from backend.models.checkpoints.checkpoint import Checkpoint, resolve
from backend.models.config import ModelConfig
from backend.models.heads.head_config import KINDS, config_of_head


def draft_of(config: EngineConfig, checkpoint: Checkpoint) -> ModelConfig | None:
    """None where nothing guesses that takes memory. Raises ConfigError for a head of another model, ModelError for what
    cannot be read."""
    if config.speculation in KINDS:
        return config_of_head(config.speculation, resolve(config.draft_model), checkpoint.config)
    return Checkpoint(resolve(config.draft_model)).config if config.speculation == "model" else None
