// Package urls serves the public URLs of boxes.
package urls
