// Package snapshots serves the snapshots of boxes: taking, listing and deleting them. Package boxes creates boxes from
// snapshots.
package snapshots
