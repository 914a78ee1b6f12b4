// Package report turns the kernel's reports about refused packets and forwarded connections into audit events.
package report
