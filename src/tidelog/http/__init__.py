"""HTTP that boat and cloud share: who may ask, frames as JSON, event streams, metrics, the OpenAPI document."""
