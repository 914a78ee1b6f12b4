// Package resources tests images, metering and limits of boxes.
package resources
