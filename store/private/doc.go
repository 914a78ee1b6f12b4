// Package private writes and checks files and directories that only their owner may read.
package private
