// Package lifecycle creates, attaches, changes and deletes boxes, and restarts the gateway while they run.
package lifecycle
