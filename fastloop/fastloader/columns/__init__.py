"""The columns of a source: arrays, images, token windows; each writes its samples into a batch."""
