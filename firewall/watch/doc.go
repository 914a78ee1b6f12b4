// Package watch notices when other programs change the table, the routing or the boxes' links, and has it put back.
package watch
