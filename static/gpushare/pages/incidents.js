import "../parts/copy.js";
import "../parts/lastlines.js";
import "../parts/period.js";
