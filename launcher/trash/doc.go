// Package trash removes the files of deleted boxes in the background, however many they are.
package trash
