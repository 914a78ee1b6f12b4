// Package lifecycle serves pausing, resuming and the init command of boxes.
package lifecycle
