"""Commands that test clients and decoders of the stream: `synth`, `serve`, `encode` and `vectors`."""
