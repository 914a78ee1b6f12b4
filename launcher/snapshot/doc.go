// Package snapshot copies what a box has written into a layer: a directory tree that later boxes stack, read-only, over
// the image. A layer holds the upper directory of an overlay as overlayfs needs it below another one: whiteouts, opaque
// directories, hard links, holes and extended attributes are kept, and owners are stored as the box sees them, as in an
// image, so that every box can map them into its own range of user IDs.
//
// A running box is copied in two stages ([Capture]). While it runs, the contents of its files are copied, each as the
// body of one inode in one state; a change of the file gives it another state. Then the box stands still: its tree is
// read, and only the files that have no body yet are copied. So it stands still for as long as it takes to look at each
// file once, whatever their size. After that the layer is put together from the bodies.
//
// The tree is hostile: directories may be moved while they are read, and names may be anything. Nothing is opened by a
// path, no link is followed and no file system is left.
package snapshot
