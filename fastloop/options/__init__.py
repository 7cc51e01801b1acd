"""All options: options/<group>/<option>.py mirrors conf/<group>/<option>.yaml."""
