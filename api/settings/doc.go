// Package settings serves settings other than rules: the environment of new boxes, and the labels, model, custom harness,
// skills, limits and source addresses of a box.
package settings
