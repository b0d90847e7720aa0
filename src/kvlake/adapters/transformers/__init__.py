"""Hugging Face Transformers: `Engine.generate` is `model.generate` with its past kept in a kvlake store.

Serves decoder-only models whose layers attend fully or through a sliding window; refuses others at construction.
"""

from kvlake.adapters.transformers.blocks import BlockLayout, LayerLayout
from kvlake.adapters.transformers.engine import Engine, EngineSettings, Generation, generate

__all__ = ["BlockLayout", "Engine", "EngineSettings", "Generation", "LayerLayout", "generate"]
