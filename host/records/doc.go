// Package records reads the records of the gateway: the [Decisions] about the traffic of boxes, in memory and on disk,
// and the [Trail] of changes made through the API.
package records
