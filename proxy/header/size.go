package header

// SizeFactor is the size of a parsed head in memory, as a multiple of its length.
const SizeFactor = 3
