"""One folder per engine: engine hook -> store call. The engine is imported only inside its adapter."""
