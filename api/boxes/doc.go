// Package boxes serves the boxes: create, attach, list, show, test and delete.
package boxes
