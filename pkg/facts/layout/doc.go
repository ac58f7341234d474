// Package layout knows kubelet's directories: where volumes are staged and published, and
// where CSI drivers listen. It reads none of them, and imports nothing of this project.
package layout
