// Package tour shows the promises of the README in their plainest form, and runs the demo that shows them.
package tour
