/* Huge pages for what the driver moves off the cards. */
#ifndef GPUSHARE_IMAGE_H
#define GPUSHARE_IMAGE_H

#include "lease.h"

/* Whose page says from now on that this process is moved; NULL: nobody's. */
void image_watch(const struct lease_page *page);

#endif
