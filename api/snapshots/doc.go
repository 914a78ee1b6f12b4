// Package snapshots serves the snapshots of boxes: taking, listing and deleting them. Boxes are made from them by package
// boxes.
package snapshots
