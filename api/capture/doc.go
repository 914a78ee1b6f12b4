// Package capture bounds the memory for output of boxes that the API buffers. A box chooses how much it prints, and many
// of its commands may print at the same time. Therefore all buffered responses, of all endpoints, share one [Budget].
package capture
