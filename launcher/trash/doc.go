// Package trash removes the files of deleted boxes in the background, even if there are millions.
package trash
