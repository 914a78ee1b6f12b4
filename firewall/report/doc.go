// Package report turns what the kernel tells of refused packets and forwarded connections into audit events.
package report
