// Package history remembers the latest runs and log lines of each box, in memory and bounded: what runs and logs answer.
package history
