// Package lifecycle makes, attaches, changes and deletes boxes, and restarts the gateway below them.
package lifecycle
