// Package private writes and checks files and directories that nobody but their owner may read.
package private
