// Package lifecycle serves what pauses, resumes and starts boxes.
package lifecycle
