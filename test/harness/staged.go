package harness

// NewStagedVolume makes a volume of which the caller stages something by itself,
// at the directory that it is handed, and publishes it.
func (n *Node) NewStagedVolume(fs, id string, stage func(staging string)) *Volume {
	n.T.Helper()
	v := n.layOut(fs, id)
	stage(v.Staging)
	v.Publish(PodUID)
	return v
}
