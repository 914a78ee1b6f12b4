// Package records shows the records of the gateway: [Decisions] about the traffic of boxes, those in memory and those on disk, and the
// [Trail] of what was changed by the API.
package records
