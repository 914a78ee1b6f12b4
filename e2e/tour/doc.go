// Package tour tests the promises of the README in their simplest form, and runs the demo.
package tour
