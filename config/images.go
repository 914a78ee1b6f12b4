package config

import "maps"

// runtimeImages are the images of the SDK's runtimes, which launcher.images can override. They are the official images
// of the languages.
var runtimeImages = map[string]string{
	"node":          "docker.io/library/node:lts",
	"python":        "docker.io/library/python:3",
	"golang":        "docker.io/library/golang:1",
	"ruby":          "docker.io/library/ruby:3",
	"rust":          "docker.io/library/rust:1",
	"node-alpine":   "docker.io/library/node:lts-alpine",
	"python-alpine": "docker.io/library/python:3-alpine",
	"golang-alpine": "docker.io/library/golang:1-alpine",
	"ruby-alpine":   "docker.io/library/ruby:3-alpine",
	"rust-alpine":   "docker.io/library/rust:1-alpine",
}

// debianRuntimes are the runtimes that the debian image contains.
var debianRuntimes = []string{"node", "python"}

// BuiltHere reports whether an image is built on this host from Debian packages.
func BuiltHere(source string) bool { return source == "debian" || source == "debian-min" }

// AllImages returns the images that a box's runtime can name.
func (l Launcher) AllImages() map[string]string {
	all := maps.Clone(runtimeImages)
	if l.Images["default"] == "debian" {
		for _, runtime := range debianRuntimes {
			all[runtime] = "debian"
		}
	}
	maps.Copy(all, l.Images)
	return all
}
