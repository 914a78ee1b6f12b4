// Package watch detects when other programs change the table, the routing or the boxes' links, and has them restored.
package watch
