"""All options: fastloop/options/<group>/<option>.py implements conf/<group>/<option>.yaml."""
