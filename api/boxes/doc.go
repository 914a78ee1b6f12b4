// Package boxes serves the boxes themselves: create, attach, list, show, test and delete.
package boxes
