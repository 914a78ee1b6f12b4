// Package lifecycle serves what pauses and resumes boxes.
package lifecycle
