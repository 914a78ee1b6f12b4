// Package clients runs popular programs and the SDK, unmodified and without setup, and tests that they work as without
// a gateway.
package clients
