"""All settings: `millstream.toml` beside the pipeline, then MILLSTREAM_SECTION__FIELD, then flags."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from millstream.analyze.settings import AnalyzeSettings
from millstream.collect.settings import CollectSettings
from millstream.log.settings import LogSettings
from millstream.serve.settings import ServeSettings


class Settings(BaseModel):
    """Every section's settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    log: LogSettings = LogSettings()
    collect: CollectSettings = CollectSettings()
    analyze: AnalyzeSettings = AnalyzeSettings()
    serve: ServeSettings = ServeSettings()
