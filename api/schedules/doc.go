// Package schedules serves what boxes do again and again.
package schedules
