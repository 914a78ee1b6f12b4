// Package resources tests what boxes are made from and what they use: images, metering and limits.
package resources
