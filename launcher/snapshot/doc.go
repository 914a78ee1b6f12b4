// Package snapshot copies the writable layer of a box into a snapshot layer: a directory tree that later boxes stack,
// read-only, over the image. A layer holds the upper directory of an overlay in a form that overlayfs accepts below another
// one: whiteouts, opaque directories, hard links, holes and extended attributes are kept, and owners are stored with the
// IDs of the box, as in an image, so that every box can map them into its own range of user IDs.
//
// A running box is copied in two stages ([Capture]). While it runs, the contents of its files are copied, each as the body
// of one inode in one state; a change of the file gives it another state. Then the box is frozen: its tree is read, and
// only files without a body are copied. So the freeze takes as long as a stat of each file, whatever their size. After that
// the layer is built from the bodies.
//
// The tree is hostile: directories may be moved while they are read, and names may be anything. No file is opened by a path
// with several elements, no link is followed and no mount point is crossed.
package snapshot
