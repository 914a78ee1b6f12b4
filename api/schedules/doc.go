// Package schedules serves the schedules of boxes: commands and prompts that run repeatedly.
package schedules
