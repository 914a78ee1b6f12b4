// Package history keeps the latest runs and log lines of each box, in memory and bounded.
package history
